"""GPU use of the last 30 days: accounts of jobs, sums of days, reports."""

#: Here, since the process in front needs this figure and none of the libraries.
MOST_DAYS = 30
