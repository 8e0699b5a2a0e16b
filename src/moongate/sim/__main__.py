"""`python -m moongate.sim` is the command `moongate sim`."""

from moongate.sim.serve import main

if __name__ == "__main__":
    raise SystemExit(main())
