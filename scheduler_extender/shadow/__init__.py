"""Shadow mode: records what another scheduler does with jobs that ask for GPUs, and acts on none.

`tandem report --shadow` replays the record under Tandem's profile. This process reads pods and
nodes, and writes ConfigMaps of its own namespace.
"""
