"""Data whose latent classes are known: are the features that are learnt the classes?"""
