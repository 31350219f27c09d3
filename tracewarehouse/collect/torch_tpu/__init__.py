"""The backend of torch_tpu: a process for each device, each with its own program."""
