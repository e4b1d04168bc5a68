"""Reading and writing the API server."""
