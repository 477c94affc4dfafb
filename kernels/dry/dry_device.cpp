// The dry device runs the unchanged model without touching data.
