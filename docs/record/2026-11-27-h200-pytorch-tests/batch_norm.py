import torch, thalweg_torch
def ref(x,g,w,eps=1e-5):
    x=x.double(); dims=[0]+list(range(2,x.dim())); shape=[1,-1]+[1]*(x.dim()-2)
    m=x.mean(dims); v=x.var(dims,correction=0); inv=1/(v+eps).sqrt(); n=x.numel()/x.shape[1]
    xh=(x-m.view(shape))*inv.view(shape); g=g.double(); wd=w.double().view(shape)
    gs=(g*wd); dx=inv.view(shape)*(gs-gs.mean(dims,keepdim=True)-xh*(gs*xh).mean(dims,keepdim=True))
    return m,inv,dx,(g*xh).sum(dims),g.sum(dims)
torch.manual_seed(0)
for dtype in (torch.bfloat16,torch.float16,torch.float32):
  for md in (dtype,torch.float32):
    for shape in ([3,3],[3,3,3],[64,32,7,7]):
      x=torch.rand(shape,device='cuda').to(dtype); g=torch.ones_like(x)
      w=torch.ones(shape[1],device='cuda',dtype=md); b=torch.zeros_like(w); rm=torch.zeros_like(w); rv=torch.ones_like(w)
      m,inv,dx,dw,db=ref(x,g,w)
      for k in (False,True):
        thalweg_torch.disable_kernels()
        if k: thalweg_torch.enable_kernels(everywhere=True)
        y,sm,si=torch.ops.aten.native_batch_norm(x,w,b,rm.clone(),rv.clone(),True,0.1,1e-5)
        for mask in ([True,True,True],[True,False,False]):
          r=torch.ops.aten.native_batch_norm_backward(g,x,w,rm,rv,sm,si,True,1e-5,mask)
          print(dtype,md,shape,'ours' if k else 'torch',mask[1],'mean %.1e inv %.1e dx %.1e (largest %.1e)'%((sm.double()-m).abs().max(),(si.double()-inv).abs().max(),(r[0].double()-dx).abs().max(),dx.abs().max()),'dw %.1e db %.1e'%((r[1].double()-dw).abs().max(),(r[2].double()-db).abs().max()) if mask[1] else '')
print([(x.operator,x.taken,x.passed_on) for x in thalweg_torch.kernels() if x.taken or x.passed_on])
