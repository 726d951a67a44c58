"""kubectl vgpu: what a person asks from a terminal. `simulate` needs no cluster."""
