"""The status page on a made-up cluster: measurements, pictures, tests in a browser."""
