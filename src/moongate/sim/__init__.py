"""The simulated Kimi: an upstream that keeps a billing book and misbehaves on demand.

It is the judge of the gateway, so it shares no code with it: nothing here imports the rest of moongate.
"""
