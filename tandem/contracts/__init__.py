"""Names, custom resources and messages that the services share."""
