"""Graphs as the exporters of real libraries write them, with the frameworks' own counts.

`generate` runs in an environment of its own, which `make corpus` sets up; the suite in
`tests/corpus` reads what it wrote.
"""
