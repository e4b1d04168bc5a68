"""How well loads and pairs are predicted for model families and GPU types that were left out."""
