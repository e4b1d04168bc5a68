"""A release of Tandem: built from one commit, pushed to a registry, signed and described."""
