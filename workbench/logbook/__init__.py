"""The log: measurements stored, compared and described. It reads records and frames, and touches no GPU.

    store, keeping             measurements and traces on disk; the thread that writes them
    run_table, equal_work      stored runs as a table; which runs did equal work and may be compared
    quantities, work_rates     energies with their errors; joules of a token or a sample
    report                     a measurement as a line, a card and JSON
    statement, waste           a signed statement of energy; energy that did no work
    log_readers                traces that other tools have written
"""
