-- steps: the training steps of each trace, and how they were found.
--
-- One row is one step; of steps found by a marker kernel, one step of one device.
-- How steps are found, `traceanalyzer schema steps` and docs/definitions.md say; `steps_by(pattern)` gives those that
-- begin with the kernels of a pattern.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   step (number): number of the step: as the annotation says it, else counted from 0
--   device (number): the device on which a marker kernel was found, NULL where the step is that of all devices
--   start_ns (ns): start on the trace's own clock: of a range on the host, of a marker kernel's step on the device
--   dur_ns (ns): duration
--   end_ns (ns): end of the range; of others the start of the next step, or the end of the last event
--   launch_start_ns (ns): start of the call that launched the step's first kernel; of ranges, start_ns
--   source (text): 'ProfilerStep', 'annotation', 'marker kernel' or 'whole trace'
--   marker (text): the annotation or kernel that marks the steps, NULL for 'whole trace'
SELECT
    run, collector, rank, part, trace_id, step, device, start_ns, end_ns - start_ns AS dur_ns, end_ns,
    launch_start_ns, source, marker
FROM derived.steps
