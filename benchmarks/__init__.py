"""What measures speed: of the verbs, of queues, of the services and of the simulator."""
