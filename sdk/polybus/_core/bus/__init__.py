"""The bus: facade, lifecycle, links, dialling and accepting."""
