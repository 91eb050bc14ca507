"""The Open Inference Protocol v2 (KServe, Triton) under ``/v2``: another form of the same requests.

schemas (bodies) -> tensors (arrays) -> requests (to a `SampleRequest`) -> routes -> outputs (to tensors).
"""
