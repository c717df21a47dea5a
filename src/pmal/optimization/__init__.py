"""The second training: distances from samples to sets of prototypes, and the loss that uses them."""
