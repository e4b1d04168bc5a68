"""The predictor: from a model graph to the load of a job."""
