"""Predict a broker's start on a store, and the messages it would lose."""
