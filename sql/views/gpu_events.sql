-- gpu_events: work on a GPU.
--
-- One row is one kernel, copy or memset, as recorded. Annotations that the profiler projects on the GPU's tracks are
-- no GPU work; they are in `annotations`.
-- Grids are in blocks: hipExtModuleLaunchKernel records work-items, which are divided by the block here; the first
-- rocprofiler-sdk back ends of PyTorch wrote block and grid (in work-items) in each other's place, which shows in
-- "blocks" of more than 1024 work-items and is undone here. What was recorded is in `args`.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   kind (text): 'kernel', 'memcpy' or 'memset', as recorded
--   name (text): name of the kernel or copy
--   kernel_key (text): the name in one spelling for all collectors: without suffixes, return type and parameters
--   class (text): 'computation', 'communication' or 'memcpy'; comes with the rule, 'computation' when none fired
--   category (text): what kind of work it is by its name (sql/rules/kernel_rules.csv), 'other' when no rule knows
--   subcategory (text): what exactly
--   rule_id (text): the rule that fired, NULL when none did
--   tracelens_class (text): the class in TraceLens' narrower rule (macro tracelens_class)
--   device (number): index of the GPU as the collector numbers it
--   stream (number): stream or hardware queue on the device
--   start_ns (ns): start on the trace's own clock
--   dur_ns (ns): duration
--   end_ns (ns): end, start_ns + dur_ns
--   correlation_id (number): shared with the runtime call that launched it; 0 and -1 mean none
--   external_id (number): id of the operator that launched it, as the profiler gave it
--   grid_x (blocks): grid of the launch
--   grid_y (blocks): grid of the launch
--   grid_z (blocks): grid of the launch
--   block_x (threads): block of the launch
--   block_y (threads): block of the launch
--   block_z (threads): block of the launch
--   bytes (bytes): size of a copy or memset
--   defect (text): NULL, or what is wrong: 'incomplete' (no start or duration), 'negative_duration',
--       'impossible_timestamp' (beyond any clock, or more than a day away from the trace's other GPU work),
--       'overrun' (reaches at least 100 ms into later work of its stream and covers at least two events of it whole)
--   clipped_dur_ns (ns): dur_ns; of an overrun, only up to the next start on its stream
--   is_linked (boolean): the runtime call that launched it was recorded
--   runtime_event_id (number): event_id of the call in `runtime_calls` that launched it, NULL when that was not recorded
--   op_event_id (number): event_id of the operator in `cpu_ops` that launched it, NULL when there is none or not known
--   launch_step (number): step (of `steps`) that launched it, NULL when not known
--   execution_step (number): step in which it started, NULL before the first one
--   args (JSON): all arguments as recorded
WITH categories AS (
    -- the same in every trace
    SELECT DISTINCT kind, name, kernel_key, class, category, subcategory, rule_id, tracelens_class
    FROM derived.kernel_names
),
geometry AS (
    SELECT
        e.*, kernel_key, class, category, subcategory, rule_id, tracelens_class,
        CASE WHEN is_swapped THEN grid_x ELSE block_x END AS threads_x,
        CASE WHEN is_swapped THEN grid_y ELSE block_y END AS threads_y,
        CASE WHEN is_swapped THEN grid_z ELSE block_z END AS threads_z,
        CASE WHEN is_swapped THEN block_x ELSE grid_x END AS extent_x,
        CASE WHEN is_swapped THEN block_y ELSE grid_y END AS extent_y,
        CASE WHEN is_swapped THEN block_z ELSE grid_z END AS extent_z,
        COALESCE(in_work_items, false) AS in_work_items,
        COALESCE(e.defect, c.defect) AS judged_defect,
        next_start_ns, COALESCE(is_linked, false) AS is_linked, runtime_event_id, op_event_id, launch_step, execution_step
    FROM raw.gpu_events AS e
    LEFT JOIN categories AS n ON n.kind = e.kind AND n.name IS NOT DISTINCT FROM e.name
    LEFT JOIN derived.gpu_corrections AS c USING (run, trace_id, event_id)
    LEFT JOIN derived.gpu_launches USING (run, trace_id, event_id)
    LEFT JOIN derived.gpu_steps USING (run, trace_id, event_id)
    LEFT JOIN derived.gpu_owners USING (run, trace_id, event_id)
)
SELECT
    run, collector, rank, part, trace_id, event_id, kind, name, kernel_key,
    class, category, subcategory, rule_id, tracelens_class,
    device, stream, start_ns, dur_ns, start_ns + dur_ns AS end_ns,
    correlation_id, external_id,
    -- a block can be larger than the rest of the grid: divide up
    CASE WHEN in_work_items THEN (extent_x + threads_x - 1) // threads_x ELSE extent_x END AS grid_x,
    CASE WHEN in_work_items THEN (extent_y + threads_y - 1) // threads_y ELSE extent_y END AS grid_y,
    CASE WHEN in_work_items THEN (extent_z + threads_z - 1) // threads_z ELSE extent_z END AS grid_z,
    threads_x AS block_x, threads_y AS block_y, threads_z AS block_z,
    bytes, judged_defect AS defect,
    CASE judged_defect WHEN 'overrun' THEN next_start_ns - start_ns ELSE dur_ns END AS clipped_dur_ns,
    is_linked, runtime_event_id, op_event_id, launch_step, execution_step, args
FROM geometry
