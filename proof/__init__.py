"""Tools of the tests: they damage code, flood services, break nodes, and read what texts say."""
