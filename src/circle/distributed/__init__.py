"""Several processes or machines under torchrun: shards in, one all_reduce out."""
