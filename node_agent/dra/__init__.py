"""The node's GPUs through Dynamic Resource Allocation: a second way to hand them to pods.

`python -m node_agent.dra` is the node's DRA driver. It publishes the GPUs that the node's agent
reports for it (`devices`, `slices`), registers with kubelet (`services`), and prepares the claims
that kube-scheduler has allocated (`claims`, `driver`) by files that the container runtime reads
(`cdi`). docs/handover.md says when to use it, docs/decisions/0077 why it is made like this.
"""

from tandem.contracts.names import GROUP

#: The name of the driver, of its DeviceClass, and the domain of its attributes.
DRIVER = GROUP
