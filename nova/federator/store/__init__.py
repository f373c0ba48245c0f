"""Schedules: the objects through which the scheduler and the agents communicate."""
