"""Other inference servers with the same model, LitServe and Triton (through pytriton), in their own environment."""
