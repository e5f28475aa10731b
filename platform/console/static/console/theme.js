/* Before anything is painted: light or dark as chosen here, else as the system says. */
{
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
