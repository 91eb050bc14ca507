"""The Open Inference Protocol, version 2 (KServe, Triton), under ``/v2``: another way to write the same requests."""
