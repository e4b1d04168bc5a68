"""The status page: what the cluster looks like now, for people, in a browser and as JSON."""
