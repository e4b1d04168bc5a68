"""What admission does to pods of ours, what it refuses, and its certificate."""
