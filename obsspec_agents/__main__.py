"""``python -m obsspec_agents`` is ``obsspec``."""

from obsspec_agents.cli import main

if __name__ == "__main__":
    main()
