-- op_summary: GPU time by the operator that launched it.
--
-- One row is one operator's name; a runtime call that no operator is around stands for itself, and work whose launch was
-- not recorded is operator NULL. Direct time is the union of what one call of the operator launched itself, subtree time
-- also of what operators within it launched, summed over the calls; within a call overlapping kernels count once.
-- Collectives are left out of direct time, and counted in subtree time, as TraceLens does. The share is of all direct time.
--
-- link_rule=tracelens links as TraceLens does (see tracelens_links), drops what it drops, and knows collectives by
-- TraceLens' names: then this is its sheet ops_summary.
--
-- Parameters:
--   link_rule (text: correlation|tracelens) = correlation: which launch a kernel belongs to
-- Uses: tracelens_links, tracelens_calls when link_rule=tracelens; gpu_owners, gpu_launches when link_rule=correlation
-- Example: traceanalyzer query STORE op_summary --rank 0
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   op (text): name of the operator, or of the runtime call where there is none; NULL where no launch was recorded
--   calls (count, summed): calls of the operator that launched work other than collectives
--   events (count, summed): pieces of work that it launched, without collectives
--   direct_ns (ns, summed): time of the work that it launched itself
--   subtree_ns (ns): the same with what operators within it launched, and collectives
--   share (share, summed): of the direct time of all operators
SELECT
    run, collector, rank, part, op, count(*) AS calls, sum(events)::BIGINT AS events,
    sum(direct_ns)::BIGINT AS direct_ns, sum(subtree_ns)::BIGINT AS subtree_ns,
    sum(direct_ns) / NULLIF(sum(sum(direct_ns)) OVER (PARTITION BY run, collector, rank, part), 0) AS share
FROM launchers($link_rule)
GROUP BY run, collector, rank, part, op
ORDER BY run, collector, rank, part, direct_ns DESC, op
