"""One model over several processes, each with a part of every linear: tensor parallelism on one machine."""
