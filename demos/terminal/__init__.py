"""A terminal agent at work: real commands in a real shell, a recorded policy.

The policy's answers (``script.py``, ``tasks/``) were written by hand in the manner of a
sampled policy; no model produced them. Everything else is real: the commands run, and what
they print is what the policy's next request carries.
"""

__all__: list[str] = []
