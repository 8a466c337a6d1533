"""One model on several processes, the ranks: tensor parallelism on `mx.distributed`.

    layers     the table and the head, which are split, and sums over the ranks
    block      a split layer; the operations between two sums are recorded as one node
    decoder    the decoder of all families, made of such layers
    messages   what rank 0 says to the others: JSON over a socket
    watch      beats between the ranks; a rank that is silent or gone ends all of them
    connecting a bound on the time that it takes, and the environment in which MLX does it
    ring       connecting MLX's ring
    mpi        joining MPI, and leaving it
    meeting    MPI's places for ranks of this machine, or the ring's addresses
    place      the program that keeps such a place
    guard      the program that enforces that bound
    lifeline   the program that ends a rank which cannot do it by itself
    group      rank 0's connections to the others, and how all of them end
    local      ranks that rank 0 starts on this machine
    launched   ranks that a launcher has started, on one machine or several
    own        the group of this process

Which part of a tensor a rank holds is in `parts.py`. Nothing here knows requests, pages or
sampling: only rank 0 knows these; the engine sends the others each step
(`engine/parallel_model.py`).
"""
