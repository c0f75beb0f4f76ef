"""Tests of the recorded endpoint."""
