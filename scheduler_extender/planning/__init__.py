"""One round on paper: who may start where, by the profile, on a board of the cluster. Pure."""
