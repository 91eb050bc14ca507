"""Capacity planning: replicas needed for a load, from a service's measured speed and a simulation of its scheduler."""
