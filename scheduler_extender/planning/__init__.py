"""One scheduling cycle on frozen copies: which job starts where, by the profile. Pure."""
