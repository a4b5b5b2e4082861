"""What released versions wrote, one folder each, and the programs that write it.

    0.1.0              a configuration, an event stream, a trace, two replay results       write
                       what it gives out: names, members, parameters                       names
    disk-1, disk-2     pages in the disk formats 1 and 2                                   disk
    kept-1             what a cache has kept on two ranks                                  kept
    store-1            a shared store as files and as the contents of a Redis              store
    trace-1, trace-2   traces of the versions 1 and 2, made, recorded and written          traces
    events-2           an event stream with version 2 of our field                         events

Every later version opens these, or says that the format is another and what to do. A change of a format gets a new
number and a new folder.
"""
