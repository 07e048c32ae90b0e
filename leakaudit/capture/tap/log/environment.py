"""Variables of the environment by which the processes of a tapped program find the tap."""

VARIABLE = "LEAKAUDIT_TAP"  # the folder of a log and the `CaptureSettings` as JSON
LAUNCHER = "LEAKAUDIT_TAP_LAUNCHER"  # the process of the command itself
ENDS = "LEAKAUDIT_TAP_ENDS"  # a process with which this one ends
