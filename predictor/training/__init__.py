"""`tandem train`: profiles and measured pairs in, published models out. No service imports it.

Imports every other room but `predictor.service`, and scikit-learn and XGBoost (extra `train`).
"""
