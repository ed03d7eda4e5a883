"""The bus itself: its public class, lifecycle and links, and how it connects and accepts."""
