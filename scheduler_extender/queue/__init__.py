"""The queue controller: from the first pod of a gang to the end of its GPUJob."""
