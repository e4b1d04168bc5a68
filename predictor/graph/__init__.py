"""ONNX bytes -> GraphFeatures: what a model graph says before anything has run.

Graphs come from strangers. Everything here works on bytes alone (never a path or URL), walks
iteratively, and answers bad input with a `GraphError`; `predictor.service.sandbox` adds the limits
on memory and time that only a process of its own can give. The service itself imports `skim` alone,
and leaves onnx to that process. Imports no other room.
"""
