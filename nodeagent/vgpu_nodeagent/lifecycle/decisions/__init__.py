"""Decisions about grants: functions of values that return effects, or raise `Refused`. No I/O."""
