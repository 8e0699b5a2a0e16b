"""`python -m moongate` is the command `moongate`."""

from moongate.cli import main

if __name__ == "__main__":
    main()
