"""From the ledger to tables: groups, statistics, references, the paper's figures."""
