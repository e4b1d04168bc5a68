"""What is measured corrects what is predicted, and bad neighbours are parted."""
