"""Reading and writing the API server; the only importer of the official client."""
