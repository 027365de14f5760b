-- is_timed: whether an event's start and duration can enter sums, windows and unions.
--
-- Not when one of them is missing ('incomplete'), negative, or beyond any clock ('impossible_timestamp').
-- An event left out here is still stored, and its `defect` says why it is left out.
CREATE OR REPLACE MACRO is_timed(defect) AS
    defect IS NULL OR defect NOT IN ('incomplete', 'negative_duration', 'impossible_timestamp');
