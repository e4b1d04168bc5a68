"""What reproduces papers, tests predictions and compares profiles, and writes what it found."""
